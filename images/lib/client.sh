# shellcheck shell=sh disable=SC2034 # variables pass between it and what reads it
# Read first by each client's program, which Mooring's agent runs as "mount <source> <directory>" or "unmount
# <directory>". A program that fails says why and what to do, and ends with 1.
#
# What a program has the agent do for its volume (service, below) ends with the volume, and so does what lies in
# $MOORING_STATE. Most have nothing else to undo, so their "unmount" ends here. One that has sets $undoes before it
# reads this.
set -eu
# What they write is for nobody else: keys are among it.
umask 077

fail() {
    echo "$1" >&2
    exit 1
}

# Has the agent do something for the volume: see docs/vendors.md.
service() {
    "$MOORING_AGENT" service "$@"
}

case ${1-}:$# in
mount:3)
    source=$2
    directory=$3
    ;;
unmount:2)
    directory=$2
    [ -n "${undoes-}" ] || exit 0
    ;;
*) fail "usage: ${0##*/} mount <source> <directory> | ${0##*/} unmount <directory>" ;;
esac
