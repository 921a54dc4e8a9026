"""Typed overrides of a preset: a Python file (--config), then fields (--config.FIELD=VALUE)."""

import dataclasses
import importlib.util
import os
from typing import Any

from absl import flags

from calibjax.errors import closest, input_error
from calibjax.forecaster.presets import Preset

CONFIG = flags.DEFINE_string(
    "config",
    None,
    "Python file whose get_config() returns a ConfigDict of preset fields; single fields are set "
    "by --config.FIELD=VALUE, and --print_config lists them",
)
PRINT_CONFIG = flags.DEFINE_boolean("print_config", False, "print every field and stop")

_FIELDS = {f.name: f.type for f in dataclasses.fields(Preset) if f.name != "name"}
_DEFINE: dict[Any, Any] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
}
for _name, _type in _FIELDS.items():
    _DEFINE.get(_type, flags.DEFINE_string)(f"config.{_name}", None, f"preset field {_name}")


def resolve(preset: Preset) -> Preset:
    """The preset with the fields of --config, then those of --config.FIELD, in place."""
    changes = _from_file(CONFIG.value) if CONFIG.value else {}
    for name in _FIELDS:
        value = flags.FLAGS[f"config.{name}"].value
        if value is not None:
            changes[name] = value
    return dataclasses.replace(preset, **changes)


def text(preset: Preset) -> str:
    """One `config.FIELD=VALUE` a line."""
    return "\n".join(f"config.{name}={getattr(preset, name)}" for name in _FIELDS)


def _from_file(path: str) -> dict[str, Any]:
    from calibjax.reading.textfiles import existing_file

    existing_file(path, "config")
    spec = importlib.util.spec_from_file_location("config_file", path)
    if spec is None or spec.loader is None:
        raise input_error("config", path, "a Python file with get_config()", "--config=FILE.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = dict(module.get_config())
    except Exception as error:
        reason = f"a Python file with get_config() ({type(error).__name__}: {error})"
        raise input_error("config", path, reason) from None
    for name, value in found.items():
        _check(name, value, os.path.basename(path))
    return found


def _check(name: str, value: Any, file: str) -> None:
    if name not in _FIELDS:
        near = closest(name, _FIELDS)
        fix = f"did you mean config.{near}" if near else "--print_config lists the fields"
        raise input_error(f"config.{name}", value, f"a preset field (in {file})", fix)
    wanted: Any = _FIELDS[name]
    if wanted is float and type(value) is int:
        return
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        kind = getattr(wanted, "__name__", str(wanted))
        fix = "--print_config shows the preset's values"
        raise input_error(f"config.{name}", value, f"{kind} (in {file})", fix)
