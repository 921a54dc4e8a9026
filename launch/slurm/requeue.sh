# What the job scripts of this directory share: from --out=DIR to putting the job back.

MAX_REQUEUES=20

# The value of --out among the arguments; none ends the job.
find_out() {
    local argument
    for argument in "$@"; do
        case $argument in
            --out=*) out=${argument#--out=} ;;
        esac
    done
    if [ -z "${out:-}" ]; then
        echo "out=: expected a directory; fix: sbatch launch/slurm/NAME.sbatch ... --out=runs/NAME" >&2
        exit 2
    fi
}

# end_or_requeue CODE PROGRESS: 134 (hung) and 143 (stopped after saving) put the job back, at most
# 20 times and only while the number PROGRESS grows. Any other code ends it: a restart would only
# repeat it. Beside OUT it is kept how often the job was put back, and at which PROGRESS.
end_or_requeue() {
    local code=$1 progress=$2 record="$out.requeues" count=0 last=-2
    case $code in
        134 | 143) ;;
        *) exit "$code" ;;
    esac
    if [ -f "$record" ]; then
        read -r count last <"$record"
    fi
    if [ "$progress" -le "$last" ]; then
        echo "no progress after $unit $last since the last requeue; not trying again" >&2
        exit 1
    fi
    if [ "$count" -ge "$MAX_REQUEUES" ]; then
        echo "requeued $count times; not trying again" >&2
        exit 1
    fi
    echo "$((count + 1)) $progress" >"$record"
    echo "exit code $code at $unit $progress; requeue $((count + 1)) of $MAX_REQUEUES" >&2
    scontrol requeue "$SLURM_JOB_ID" || {
        echo "scontrol could not requeue the job; submit the same command again to go on" >&2
        exit "$code"
    }
}
