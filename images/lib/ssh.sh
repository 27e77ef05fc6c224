# shellcheck shell=sh
# How a provisioning script has its storage server do something: by a login with the keys ssh-privatekey and known_hosts
# of the ConfigMap's Secret. Read after run.sh.

# Puts the keys where log_in finds them.
take_ssh_keys() {
    (
        umask 077
        pv get ssh-privatekey >/tmp/key
        pv get known_hosts >/tmp/known_hosts
    )
}

# Prints a server's name or address as it stands in a source: an IPv6 address in brackets.
in_brackets() {
    case $1 in
    \[*) echo "$1" ;;
    *:*:*) echo "[$1]" ;;
    *) echo "$1" ;;
    esac
}

# Runs a command on the server: log_in <user@server> <port> <command>. The command reads what this reads. A busy server
# may need many seconds for its first word. ssh takes an IPv6 address without brackets. Its own messages come last.
log_in() {
    status=0
    : >/tmp/ssh.log
    ssh -F none -E /tmp/ssh.log -p "$2" -i /tmp/key -o BatchMode=yes -o ConnectTimeout=30 \
        -o UserKnownHostsFile=/tmp/known_hosts -- "$(echo "$1" | tr -d '[]')" "$3" || status=$?
    cat /tmp/ssh.log >&2
    [ "$status" = 255 ] || return "$status"
    case $(cat /tmp/ssh.log) in
    *'IDENTIFICATION HAS CHANGED'*)
        fail "$1 shows another host key than known_hosts in the ConfigMap's Secret has: if its key was changed on" \
            "purpose, put the output of ssh-keyscan -p $2 there" >&2 ;;
    *'Host key verification failed'*)
        fail "known_hosts in the ConfigMap's Secret does not have the server of $1: put the output of" \
            "ssh-keyscan -p $2 there" >&2 ;;
    *'Permission denied'*)
        fail "the server does not accept ssh-privatekey of the ConfigMap's Secret for $1: put its public half into" \
            "the user's authorized_keys" >&2 ;;
    esac
    return 255
}
