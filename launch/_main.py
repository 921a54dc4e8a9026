"""What all commands share: exit codes, one-line faults, --help, the run directory.

Exit codes: 0 done; 2 the input or the flags are wrong (one line on stderr); 1 anything else; 143
stopped by SIGTERM or SIGUSR1, 130 by Ctrl-C, after saving; 134 a watchdog ended a hung process.
"""

import errno
import hashlib
import os
import platform
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from absl import flags

from calibjax import storage
from calibjax.errors import InputError, input_error
from calibjax.progress import say
from calibjax.reading.textlines import existing_file
from calibjax.training import distributed, signals, watchdog
from launch import _flags
from launch._run_directory import Follower, RunDirectory, open_run
from launch._run_record import command_line

FLAGS = flags.FLAGS
# Errors that say all there is to say; their modules would import JAX.
_EXPLAINED = ("ServerLost", "BudgetSpent", "TrainingError", "CheckpointError")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What may change between a run and its continuation.
_HARMLESS = ("out", "resume", "overwrite", "strict", "seed")


def run(main: Callable[[], Any], *, examples: Sequence[str] = ()) -> None:
    """Parses the flags, calls `main()` and exits the process with the right code.

    examples: commands to copy, shown by --help.
    """
    _mend_standard_streams()
    signals.install()
    code = _guarded(main, examples)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if distributed.is_joined() and code in (1, 2, watchdog.EXIT_CODE):
        distributed.leave_at_once(code)
    sys.exit(code)


@contextmanager
def open_out(
    main: Callable[[], Any],
    *,
    files: Mapping[str, str | Path | None] | None = None,
    harmless: Sequence[str] = (),
) -> Iterator[RunDirectory]:
    """The run directory of --out: created, locked, and with run.json written.

    A non-empty one needs --resume or --overwrite. On --resume, the seed, the command's own flags
    (but those in `harmless`) and the content of the input `files` (flag name -> path) must be as
    in run.json. Raises InputError before anything is written.
    """
    depends_on: dict[str, Any] = {
        flag.name: flag.value
        for flag in _flags.own_flags(main)
        if flag.name not in (*_HARMLESS, *harmless, *(files or {}))
    }
    if FLAGS.overwrite and FLAGS.out:
        _check_inputs_outside(main, Path(FLAGS.out))
    for name, path in (files or {}).items():
        found = existing_file(path, name) if path else None
        depends_on[name] = f"sha256:{storage.sha256_file(found)}" if found else None
    if not distributed.is_primary():
        path = Path(FLAGS.out or ".")
        use_compilation_cache(path)
        yield Follower(path)
        return
    with open_run(
        FLAGS.out,
        seed=FLAGS.seed,
        command=command_line(),
        depends_on=depends_on,
        resume=FLAGS.resume,
        overwrite=FLAGS.overwrite,
        strict=FLAGS.strict,
    ) as opened:
        use_compilation_cache(opened.path)
        yield opened


def _check_inputs_outside(main: Callable[[], Any], out: Path) -> None:
    """InputError for a flag whose file lies in the directory that --overwrite replaces."""
    for flag in _flags.own_flags(main):
        if flag.name == "out":
            continue
        for value in flag.value if isinstance(flag.value, list) else [flag.value]:
            if isinstance(value, str) and _lies_in(value, out):
                expected = f"a path outside {out}, whose files --overwrite replaces"
                raise input_error(flag.name, value, expected, "move it, or another --out")


def _lies_in(value: str, out: Path) -> bool:
    try:
        path = Path(value).resolve()
        return out.resolve() in path.parents and path.exists()
    except (OSError, ValueError):  # no path at all
        return False


def use_compilation_cache(out: Path) -> None:
    """Keeps compiled programs between processes; in `out` where there is no home directory."""
    if not any(os.environ.get(name) for name in ("CALIBJAX_CACHE", "XDG_CACHE_HOME", "HOME")):
        os.environ["CALIBJAX_CACHE"] = str(out / ".cache")
    try:
        directory = storage.cache_dir() / "xla" / _cpu_kind()
        directory.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError):
        say("no writable cache directory: programs are compiled anew; set CALIBJAX_CACHE=DIR")
        return
    settings = {
        "jax_compilation_cache_dir": str(directory),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        # JAX reads them when it is imported; then they must be set by hand.
        os.environ.setdefault(name.upper(), str(value))
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, value)


def _guarded(main: Callable[[], Any], examples: Sequence[str]) -> int:
    """The exit code of `main()`; says on stderr what went wrong."""
    try:
        if any(argument in ("--help", "-help", "-h", "--helpfull") for argument in sys.argv[1:]):
            print(_flags.help_text(main, examples), end="")
            return 0
        _flags.parse(sys.argv, main)
        main()
        return 0
    except InputError as error:
        say(" ".join(str(error).split()))
        return 2
    except flags.Error as error:
        say(" ".join(str(_flags.flag_fault(error)).split()))
        return 2
    except signals.Preempted as stop:
        say(f"{stop}; continue with: {_continue_command()}")
        return stop.exit_code
    except KeyboardInterrupt:
        say(f"stopped by SIGINT; continue with: {_continue_command()}")
        return 130
    except OSError as error:
        if error.errno not in _FULL:
            traceback.print_exc()
            return 1
        say(_full_disk(error))
        return 1
    except Exception as error:
        if type(error).__name__ == "JaxRuntimeError" and distributed.is_joined():
            # A collective whose peer is gone; a restart from the last checkpoint mends it.
            say(f"lost another process of the run: {' '.join(str(error).split())[:500]}")
            return watchdog.EXIT_CODE
        if type(error).__name__ in _EXPLAINED:
            say(" ".join(str(error).split()))
        else:
            traceback.print_exc()
        return 1


def _full_disk(error: OSError) -> str:
    """What could not be written, how much room there is, and how to go on."""
    place = Path(error.filename or FLAGS.out or ".")
    free = shutil.disk_usage(place.parent if place.parent.exists() else ".").free
    reason = f"{place}: {error.strerror} ({free / 2**20:.1f} MiB free)"
    return f"{reason}; free some space and continue with: {_continue_command()}"


def _continue_command() -> str:
    arguments = [word for word in command_line() if word not in ("--overwrite", "--resume")]
    return shlex.join([*arguments, "--resume"])


def _cpu_kind() -> str:
    """Short hash of the CPU: a program compiled for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]


class _Quiet:
    """A text stream whose reader may go away (`| head`): then what is written is dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._try(lambda: self._stream.write(text)) or 0

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except BrokenPipeError:
            # What is still in the buffer must not fail again at exit.
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, self._stream.fileno())
            os.close(sink)
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _mend_standard_streams() -> None:
    """A closed stdin, stdout or stderr becomes /dev/null: else a data file may get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or os.fdopen(number, "w")
        # A terminal that cannot show a character is no reason to lose the run.
        stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, _Quiet(stream))
