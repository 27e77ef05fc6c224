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
# may need many seconds for its first word. ssh takes an IPv6 address without brackets.
log_in() {
    ssh -F none -p "$2" -i /tmp/key -o BatchMode=yes -o ConnectTimeout=30 -o UserKnownHostsFile=/tmp/known_hosts \
        -- "$(echo "$1" | tr -d '[]')" "$3"
}
