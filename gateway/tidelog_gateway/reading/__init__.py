"""Responses with records in any media type: content negotiation, value encodings, bodies encoded from columns."""
