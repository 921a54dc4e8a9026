"""The Slurm script and the JobSet: their settings, and what they do when training ends."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SBATCH = ROOT / "launch" / "slurm" / "train.sbatch"
JOBSET = ROOT / "launch" / "gke" / "train.yaml"


def test_the_slurm_script_asks_for_what_preemption_needs():
    text = SBATCH.read_text()
    settings = set(re.findall(r"^#SBATCH (--\S+)", text, re.MULTILINE))
    assert {"--signal=USR1@120", "--requeue", "--open-mode=append"} <= settings
    assert "\nsrun " in text and "MAX_REQUEUES=20" in text
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)


@pytest.fixture
def cluster(tmp_path):
    """Runs the script as Slurm would; srun and scontrol are stubs that follow a plan."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    plan, calls, out = tmp_path / "plan", tmp_path / "calls", tmp_path / "run"
    # Each line of the plan: the exit code, and the step of a checkpoint that is written first.
    (stubs / "srun").write_text(
        f"""#!/usr/bin/env bash
echo "srun $*" >>{calls}
read -r code step <{plan}
sed -i 1d {plan}
[ -n "$step" ] && mkdir -p {out}/checkpoint/$step
exit $code
"""
    )
    (stubs / "scontrol").write_text(f'#!/usr/bin/env bash\necho "scontrol $*" >>{calls}\n')
    for stub in stubs.iterdir():
        stub.chmod(0o755)

    def run(*endings: str) -> tuple[list[int], list[str], str]:
        plan.write_text("".join(f"{ending}\n" for ending in endings))
        environ = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        codes, told = [], ""
        while True:
            known = calls.read_text().count("scontrol") if calls.exists() else 0
            done = subprocess.run(
                ["bash", str(SBATCH), "--data=d", f"--out={out}"],
                env=environ,
                capture_output=True,
                text=True,
            )
            codes.append(done.returncode)
            told += done.stderr
            if calls.read_text().count("scontrol") == known:
                return codes, calls.read_text().splitlines(), told

    return run


def test_a_preempted_job_is_put_back_until_it_is_done(cluster):
    codes, calls, _ = cluster("143 5", "134 9", "0 12")
    assert codes == [0, 0, 0]
    assert [line.split()[0] for line in calls] == ["srun", "scontrol"] * 2 + ["srun"]
    assert calls[1] == "scontrol requeue 7"
    assert all(line.endswith("--resume") for line in calls if line.startswith("srun"))


def test_a_job_that_gets_no_further_is_not_put_back(cluster):
    codes, calls, told = cluster("143 5", "143 5", "0")
    assert codes == [0, 1] and sum(line.startswith("scontrol") for line in calls) == 1
    assert "no checkpoint after step 5" in told


def test_a_preemption_before_the_first_checkpoint_is_tried_once_more(cluster):
    codes, calls, _ = cluster("143", "143", "0")
    assert codes == [0, 1] and sum(line.startswith("scontrol") for line in calls) == 1


@pytest.mark.parametrize("code", ["1", "2", "130"])
def test_other_failures_end_the_job(cluster, code):
    codes, calls, _ = cluster(f"{code} 5")
    assert codes == [int(code)] and len(calls) == 1


def test_twenty_requeues_are_enough(cluster):
    codes, calls, told = cluster(*(f"143 {step}" for step in range(30)))
    assert len(codes) == 21 and codes[-1] == 1
    assert sum(line.startswith("scontrol") for line in calls) == 20
    assert "requeued 20 times" in told


def test_the_slurm_script_needs_out(tmp_path):
    done = subprocess.run(["bash", str(SBATCH), "--data=d"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("out=: expected a directory")


def check(value, pattern, where):
    """`pattern`: a value, a type in <>, a list of one pattern, or an object of known keys ("?":
    may be absent)."""
    if isinstance(pattern, dict):
        assert isinstance(value, dict), where
        assert set(value) <= set(pattern), f"{where}: {set(value) - set(pattern)}"
        for key, inner in pattern.items():
            if key in value:
                check(value[key], inner, f"{where}.{key}")
            else:
                assert isinstance(inner, str) and inner.endswith("?"), f"{where}.{key} is missing"
    elif isinstance(pattern, list):
        assert isinstance(value, list) and value, where
        for number, item in enumerate(value):
            check(item, pattern[0], f"{where}[{number}]")
    elif pattern.rstrip("?") == "<any>":
        assert isinstance(value, dict), where
    elif pattern.startswith("<"):
        wanted = {"<str>": str, "<int>": int, "<bool>": bool}[pattern.rstrip("?")]
        assert type(value) is wanted, f"{where}: {value!r}"
    else:
        assert value == pattern, where


def test_the_jobset_restarts_what_a_restart_can_mend_and_nothing_else():
    jobset = yaml.safe_load(JOBSET.read_text())
    check(jobset, json.loads((Path(__file__).parent / "jobset_subset.json").read_text()), "jobset")
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 20
    assert pod["terminationGracePeriodSeconds"] == 120
    codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert codes == sorted(codes) and {134, 143} <= set(codes) and not {0, 1, 2} & set(codes)
    environ = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert job["completions"] == job["parallelism"] == int(environ["NUM_PROCESSES"])


def test_the_jobset_tells_each_process_who_it_is():
    from calibjax.training.distributed import Cluster, detect

    jobset = yaml.safe_load(JOBSET.read_text())
    job = jobset["spec"]["replicatedJobs"][0]
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    # What Kubernetes and JobSet fill in.
    annotations = {"jobset-name": jobset["metadata"]["name"], "replicatedjob-name": job["name"]}
    environ = {"JOB_COMPLETION_INDEX": "1"}
    for entry in container["env"]:
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        named = re.search(r"jobset\.sigs\.k8s\.io/([\w-]+)", path)
        environ[entry["name"]] = annotations[named[1]] if named else entry["value"]
    port = container["ports"][0]["containerPort"]
    assert detect(environ) == Cluster(f"calibjax-train-0-0.calibjax:{port}", 2, 1)
