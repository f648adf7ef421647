/** Bytes and text: base64 and the length of UTF-8, by functions that node and browsers both have. */

const CHUNK_BYTES = 0x8000;

/** Return the bytes of a Uint8Array, another view or an ArrayBuffer; undefined for anything else. */
export function bytesOf(value) {
  if (value instanceof Uint8Array) return value;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  return undefined;
}

/** Return bytes as base64. */
export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
    text += String.fromCharCode(...bytes.subarray(at, at + CHUNK_BYTES));
  }
  return btoa(text);
}

/** Return the bytes that a base64 text encodes. */
export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Return the number of bytes that a base64 text encodes. */
export function base64Length(text) {
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  return (text.length / 4) * 3 - padding;
}

/** Return the number of bytes of a text in UTF-8. */
export function utf8Length(text) {
  let length = text.length;
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at);
    if (unit < 0x80) continue;
    if (unit < 0x800) {
      length += 1;
    } else if (unit >= 0xd800 && unit < 0xdc00 && at + 1 < text.length) {
      length += 2; // four bytes for the two units of a pair
      at += 1;
    } else {
      length += 2;
    }
  }
  return length;
}
