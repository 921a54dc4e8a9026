"""What a weights file is not: the usual stand-ins, told apart before any parser sees them."""

from pathlib import Path

from calibjax.errors import InputError, input_error

_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_TO_SAFETENSORS = (
    "convert it where you trust it: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)"
)


def check_weight_file(path: Path) -> None:
    """Raises InputError if `path` is absent, empty, a Git LFS pointer, a web page or a pickle."""
    if not path.is_file():
        raise input_error(str(path), "absent", "a weights file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(512)
    if not size:
        raise InputError(f"{path}: is empty (0 bytes); fix: download it again")
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: is a Git LFS pointer ({size} bytes); fix: git lfs pull")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InputError(
            f"{path}: is a web page ({size} bytes), not weights; fix: download it again, logged in"
        )
    if path.suffix in _PICKLED or start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        raise pickle_error(path)


def pickle_error(path: Path) -> InputError:
    """The refusal of a PyTorch pickle, which could run code when opened."""
    return InputError(f"{path}: is a pickle, which is never opened; fix: {_TO_SAFETENSORS}")


def pickles_in(directory: Path) -> list[Path]:
    return sorted(p for p in directory.iterdir() if p.suffix in _PICKLED)
