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

# Runs a command on the server: log_in <user@server> <port> <command>. The command reads what this reads. A busy server
# may need many seconds for its first word.
log_in() {
    ssh -F none -p "$2" -i /tmp/key -o BatchMode=yes -o ConnectTimeout=30 -o UserKnownHostsFile=/tmp/known_hosts \
        -- "$1" "$3"
}
