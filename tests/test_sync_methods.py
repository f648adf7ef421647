from __future__ import annotations

import pytest
from tests.sync_methods import BEGIN, END, FORWARDED, Forwarding, render, rendered


@pytest.mark.parametrize("module", sorted({each.module for each in FORWARDED}), ids=lambda path: path.name)
def test_generated_methods_are_current(module: object) -> None:
    (path,) = {each.module for each in FORWARDED if each.module == module}
    assert path.read_text() == rendered(path), "run: make generate"


def test_changed_signature_changes_the_generated_method() -> None:
    (security,) = (each for each in FORWARDED if each.name == "Security")
    text = security.module.read_text()
    stale = text.replace("def revoke_key(self, key_id: str)", "def revoke_key(self, key: str)")
    assert stale != text
    assert render(security, stale) == text


@pytest.mark.parametrize("forwarding", FORWARDED, ids=lambda each: each.name)
def test_methods_outside_of_the_block_are_kept(forwarding: Forwarding) -> None:
    text = forwarding.module.read_text()
    begin = text.index(BEGIN, text.index(f"\nclass {forwarding.name}"))
    block = text[begin : text.index(END, begin)]
    assert block.count("self._thread.run(") == block.count("    def "), "each generated method forwards"
    assert f"def {next(iter(forwarding.omitted), '_')}(" not in block
