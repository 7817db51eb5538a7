"""The boot hook: a dead-man of a few lines of sh that runs at every boot and never exits.

It holds where the agent cannot: before the first connection, without Python, after the agent was killed.
It needs only sh, date, sleep, cat, mkdir, mv and kill, keeps its deadline in memory as well as in the file, and forks
one `sleep` every few seconds. The deadline file's meaning is docs/concepts/machine-side.md, "Ends".
"""

from __future__ import annotations

import hashlib
import re

FIRST_END_S = 1800  # a machine that no controller ever reached ends after this
LEAST_END_S = 60  # even with a clock that is far ahead, a fresh machine lives long enough to be armed
AGENT_FIRST_S = 5  # how long a confirmed end is left to the agent, which also records how the runs ended
LOOK_S = 3
REVIVE_LOOKS = 10  # every so many looks an agent that was killed is started again

_TEMPLATE = r"""#!/bin/sh
# gpujob boot hook of rental @rental@: ends this machine's work at the time in ~/.gpujob/deadline.
umask 077
HOME=${HOME:-/root}; export HOME
mkdir -p "$HOME/.gpujob"
cat >"$HOME/.gpujob/hook.sh.new" <<'GPUJOB_HOOK' && mv -f "$HOME/.gpujob/hook.sh.new" "$HOME/.gpujob/hook.sh"
trap '' HUP
d=$HOME/.gpujob
PATH=${PATH:-/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH
read -r boot </proc/sys/kernel/random/boot_id
born() { # start time of a process: with the pid it names one process for good
    b=; read -r b 2>/dev/null <"/proc/$1/stat" || return 1
    set -- ${b##*)}; b=${20}
}
now() { read -r up _ </proc/uptime; up=${up%%.*}; }
if read -r p s 2>/dev/null <"$d/hook.pid" && [ "$p" != $$ ] && born "$p" && [ "$b" = "$s" ]; then exit 0; fi
born $$; echo "$$ $b" >"$d/hook.pid.new" && mv -f "$d/hook.pid.new" "$d/hook.pid"
[ -s "$d/nonce" ] || { echo '@nonce@' >"$d/nonce.new" && mv -f "$d/nonce.new" "$d/nonce"; }
now; utc=$(date +%s); left=$((@end@ - utc))
[ $left -gt @first@ ] && left=@first@
[ $left -lt @least@ ] && left=@least@
end=$((utc + left)) boot_id=$boot boot_now=$up boot_end=$((up + left)) grace=@grace@ action=@action@ confirmed=0
[ -s "$d/deadline" ] || { printf '%s\n' end=$end.0 boot_id=$boot_id boot_now=$boot_now.0 boot_end=$boot_end.0 \
    grace=$grace action=$action confirmed=0 >"$d/deadline.new" && mv -f "$d/deadline.new" "$d/deadline"; }
look() { # sets `left`; an unreadable file leaves what was known before
    while IFS== read -r k v; do
        case $k in
            end | boot_now | boot_end | confirmed)
                v=${v%%.*}
                case $v in '' | *[!0-9]*) ;; *) eval "$k=$v" ;; esac ;;
            boot_id | action) eval "$k=\$v" ;;
        esac
    done 2>/dev/null <"$d/deadline"
    now
    if [ "$boot_id" = "$boot" ] && [ "$up" -ge "$boot_now" ]; then left=$((boot_end - up))
    else left=$((end - $(date +%s))); fi
    [ "$confirmed" = 1 ] && left=$((left + @agent_first@))
}
parent() { pp=; while read -r k pp _; do [ "$k" = PPid: ] && return; done 2>/dev/null <"/proc/$1/status"; pp=; }
finish() { # the agent, its runs and all that they started
    hit=' ' more=1
    while [ $more = 1 ]; do
        more=0
        for q in /proc/[0-9]*; do
            q=${q#/proc/}
            case $hit in *" $q "*) continue ;; esac
            [ "$q" = $$ ] || [ "$q" = 1 ] && continue
            parent "$q"
            case $hit in
                *" ${pp:-none} "*) ;;
                *) case $(cat "/proc/$q/environ" 2>/dev/null) in *GPUJOB_MACHINE=@mark@*) ;; *) continue ;; esac ;;
            esac
            kill -STOP "$q" 2>/dev/null; hit="$hit$q "; more=1
        done
    done
    for q in $hit; do kill -KILL "$q" 2>/dev/null; done
}
n=0
while :; do
    look
    if [ $left -le 0 ]; then
        finish
        if [ "$action" = poweroff ]; then
            poweroff || sudo -n poweroff || shutdown -h now
            kill -TERM 1; kill -INT 1
        fi 2>/dev/null
    elif [ $n = 0 ] && [ -f "$d/agent.py" ]; then
        p=; read -r p s _ 2>/dev/null <"$d/agent.pid"
        { [ -n "$p" ] && born "$p" && [ "$b" = "$s" ]; } || (python3 "$d/agent.py" start </dev/null >/dev/null 2>&1 &)
    fi
    n=$(((n + 1) % @revive@))
    sleep @look@
done
GPUJOB_HOOK
exec sh "$HOME/.gpujob/hook.sh"
"""


def boot_hook(*, nonce: str, end: float, grace_s: int, action: str, rental: str) -> str:
    """The script to be run at every boot as the login user, detached.

    `nonce` is letters, digits and `._-`; `end` is UTC epoch seconds; `action` is `kill` or `poweroff`.
    """
    for value in (nonce, rental):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", value):
            raise ValueError(f"not a plain word: {value!r}")
    if action not in ("kill", "poweroff"):
        raise ValueError(f"action is kill or poweroff, not {action!r}")
    values: dict[str, str | int] = {
        "rental": rental,
        "nonce": nonce,
        "mark": hashlib.sha256(nonce.encode()).hexdigest()[:16],
        "end": int(end),
        "grace": int(grace_s),
        "action": action,
        "first": FIRST_END_S,
        "least": LEAST_END_S,
        "agent_first": AGENT_FIRST_S,
        "look": LOOK_S,
        "revive": REVIVE_LOOKS,
    }
    return re.sub(r"@(\w+)@", lambda match: str(values[match.group(1)]), _TEMPLATE)
