#!/usr/bin/env bash
# Run one nox session of kvtrail on a GPU host without a network.
#
#   bash run.sh SESSION [ARGS...]        as `nox -s SESSION -- ARGS...` in a fresh clone
#
# KVTRAIL_PYTHON  the host's interpreter, the one that has torch (default: python3)
# KVTRAIL_DIR     where the clone and its environments go (default: ./kvtrail)
# KVTRAIL_TREE    a working tree to lay over the clone, to measure what is not committed yet
# KVTRAIL_OUT     where the clone's reports/ are packed afterwards, also after a failure
set -euo pipefail

bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
directory=${KVTRAIL_DIR:-$PWD/kvtrail}
python=$(command -v "${KVTRAIL_PYTHON:-python3}" || true)

fail() { echo "run.sh: $*" >&2; exit 2; }
[ $# -ge 1 ] || fail "name a nox session, for example: bash run.sh kernels"
[ -n "$python" ] || fail "no ${KVTRAIL_PYTHON:-python3} here; set KVTRAIL_PYTHON to the interpreter that has torch"
command -v git >/dev/null || fail "git is not installed here, and the history cannot be unpacked without it"
wanted=$(cat "$bundle/PYTHON")
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$wanted" ] || fail "the wheels are for Python $wanted and $python is $found; make the bundle with --python-version $found"

session=$1
shift
[ "${1:-}" != "--" ] || shift

if [ -d "$directory/.git" ]; then
    git -C "$directory" fetch -q "$bundle/history.bundle" HEAD
    git -C "$directory" checkout -q --force --detach FETCH_HEAD
else
    git clone -q "$bundle/history.bundle" "$directory"
fi
if [ -n "${KVTRAIL_TREE:-}" ]; then
    tree=$(cd "$KVTRAIL_TREE" && pwd)
    (cd "$directory" && git ls-files -z | xargs -0 rm -f)
    tar -C "$tree" --exclude=./.git --exclude=./.venv --exclude=./.nox --exclude=./.asv \
        --exclude=./.bundle -cf - . | tar -C "$directory" -xf -
fi
cd "$directory"

# Nothing below may reach for a network, whatever the host's own settings are.
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$bundle/wheels" PIP_CONFIG_FILE=/dev/null
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1
unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL PYTHONPATH
export KVTRAIL_HOST_PYTHON=$python

if ! [ -x .venv/bin/nox ]; then
    # The host's Python may lack ensurepip: pip runs from its own wheel.
    "$python" -m venv --without-pip .venv
    .venv/bin/python "$(echo "$bundle"/wheels/pip-*.whl)/pip" install -q nox
fi

out=${KVTRAIL_OUT:-}
# What a session starts is not to take this script's folders for its own.
unset KVTRAIL_DIR KVTRAIL_TREE KVTRAIL_OUT

status=0
.venv/bin/python -m nox -s "$session" -- "$@" || status=$?

if [ -n "$out" ] && [ -d reports ]; then
    mkdir -p "$out"
    tar -czf "$out/reports.tar.gz" --exclude=reports/html reports
    echo "run.sh: reports/ packed into $out/reports.tar.gz"
fi
exit "$status"
