from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from tidelog_proto.process.settings import SettingsError, load_settings


class Model(BaseModel):
    http_port: int = Field(default=8080, ge=0, le=65535)
    bootstrap: list[str] = ["127.0.0.1:7400"]
    data: Path | None = None
    body_timeout_s: float = 30.0


def load(path: Path | None = None, environ: dict[str, str] | None = None, **overrides: object) -> Model:
    return load_settings(Model, "gateway", path, overrides, environ or {})


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tidelog.toml"
    path.write_text(text)
    return path


def test_defaults_file_environment_and_flags_in_rising_order(tmp_path: Path) -> None:
    assert load().http_port == 8080
    path = write(tmp_path, "[gateway]\nhttp_port = 1\nbody_timeout_s = 2\n[node]\nanything = true\n")
    assert load(path).http_port == 1
    assert load(path, {"TIDELOG_GATEWAY_HTTP_PORT": "2"}).http_port == 2
    assert load(path, {"TIDELOG_GATEWAY_HTTP_PORT": "2"}, http_port=3).http_port == 3
    assert load(path, {"TIDELOG_GATEWAY_HTTP_PORT": "2"}, http_port=None).http_port == 2
    assert load(path).body_timeout_s == 2.0


def test_a_dotted_key_is_the_one_with_an_underscore(tmp_path: Path) -> None:
    assert load(write(tmp_path, "[gateway]\nhttp.port = 5\n")).http_port == 5
    assert load(write(tmp_path, "[gateway.body.timeout]\ns = 7\n")).body_timeout_s == 7.0
    with pytest.raises(SettingsError, match=r"unknown setting http_prot in .*did you mean http_port"):
        load(write(tmp_path, "[gateway]\nhttp.prot = 5\n"))


def test_a_list_in_a_variable_is_split_at_commas() -> None:
    assert load(environ={"TIDELOG_GATEWAY_BOOTSTRAP": "a:1, b:2,"}).bootstrap == ["a:1", "b:2"]


def test_variables_of_other_processes_are_left_alone() -> None:
    assert load(environ={"TIDELOG_NODE_PORT": "1", "TIDELOG_BOOTSTRAP": "a:1", "HOME": "/"}) == Model()


def test_unknown_keys_are_errors_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown setting http_prot in \[gateway\].*did you mean http_port\?"):
        load(write(tmp_path, "[gateway]\nhttp_prot = 1\n"))
    with pytest.raises(SettingsError, match=r"TIDELOG_GATEWAY_HTTPPORT.*did you mean TIDELOG_GATEWAY_HTTP_PORT\?"):
        load(environ={"TIDELOG_GATEWAY_HTTPPORT": "1"})
    with pytest.raises(SettingsError, match=r"unknown section \[gatway\]: did you mean gateway\?"):
        load(write(tmp_path, "[gatway]\n"))
    with pytest.raises(SettingsError, match=r"unknown setting zzz in the command line; known are: body_timeout_s"):
        load(zzz=1)


def test_bad_values_say_where_they_came_from(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.http_port \(from TIDELOG_GATEWAY_HTTP_PORT\): .*valid integer"):
        load(environ={"TIDELOG_GATEWAY_HTTP_PORT": "many"})
    with pytest.raises(SettingsError, match=r"gateway\.http_port \(from \[gateway\] in .*\): .*less than or equal"):
        load(write(tmp_path, "[gateway]\nhttp_port = 70000\n"))


def test_files_that_cannot_be_read_are_clear(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load(write(tmp_path, "[gateway\n"))
    path = tmp_path / "latin.toml"
    path.write_bytes(b"[gateway]\nbootstrap = '\xff'\n")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load(path)
    with pytest.raises(SettingsError, match="gateway must be a section"):
        load(write(tmp_path, "gateway = 1\n"))


def test_missing_required_setting_names_its_sources() -> None:
    class Needs(BaseModel):
        data_dir: str

    with pytest.raises(SettingsError) as caught:
        load_settings(Needs, "node", environ={})
    assert str(caught.value) == (
        "node.data_dir is required: set --data-dir, the variable TIDELOG_NODE_DATA_DIR, "
        "or data_dir in [node] of a configuration file"
    )
