#!/usr/bin/env bash
# One recipe over several processes of this machine, through torchrun.
#
#   launchers/torchrun.sh 2 +recipe=sft sharding=ddp
#
# Run it from the folder that is to hold outputs/. `python -m rlhf_lab … sharding.processes=2` does the same without it.
set -euo pipefail
python="${RLHF_LAB_PYTHON:-.venv/bin/python}"

if [ "$#" -lt 2 ]; then
    echo "usage: launchers/torchrun.sh PROCESSES +recipe=NAME sharding=NAME [override …]" >&2
    exit 2
fi
if [ ! -x "$python" ]; then
    echo "$PWD/$python is missing; run 'make setup', or set RLHF_LAB_PYTHON" >&2
    exit 2
fi
processes="$1"
shift

# By default USR1 and USR2 kill torchrun and not its processes; a large checkpoint takes longer than its 30 seconds.
exec "$python" -m torch.distributed.run --standalone --nproc-per-node="$processes" --max-restarts=0 \
    --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 --shutdown-timeout=600 -m rlhf_lab "$@"
