"""`host add|ls|rm`: machines that you own or rented by hand.

Rules: the host's key is shown and pinned before anything is sent; a password is asked for once, used once and stored
nowhere; what is installed there is one line in authorized_keys, and `host rm` takes it out again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import money_json, print_json, put, say, table
from orchestrator.home import Home

SCAN_S = 10
INSTALL = (  # one line, once, whatever the file ends with
    "umask 077; mkdir -p ~/.ssh && touch ~/.ssh/authorized_keys && "
    "{{ grep -qxF '{line}' ~/.ssh/authorized_keys || printf '\\n%s\\n' '{line}' >>~/.ssh/authorized_keys; }}"
)
REMOVE = (
    "grep -vxF '{line}' ~/.ssh/authorized_keys >~/.ssh/.gpujob-keys; "
    "cat ~/.ssh/.gpujob-keys >~/.ssh/authorized_keys; rm -f ~/.ssh/.gpujob-keys"
)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("add", "ls", "rm"))
    parser.add_argument("name", metavar="NAME", nargs="?", help="how you call the machine")
    parser.add_argument("address", metavar="SSH", nargs="?", help="how you log in: 'ssh -p 12345 root@host'")
    parser.add_argument(
        "--gpu", metavar="GPU", help="its cards, as in a spec: RTX-4090:2, or none; else they are asked"
    )
    parser.add_argument("--price", metavar="MONEY", help="what it costs an hour: '1.98 CNY'; nothing when left out")
    parser.add_argument("--release", metavar="HOW", default="none",
                        help="how a job gives it back: none (default), poweroff, or a command run there")  # fmt: skip
    parser.add_argument("-y", "--yes", action="store_true", help="trust the host key that is seen now")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """One of the three."""
    from orchestrator.hosts import HostError

    home = Home.from_env()
    try:
        if args.action == "ls":
            return _list(home, args.output)
        if not args.name:
            raise CliError(f"host {args.action} needs a name", next="gpujob host ls")
        return _add_host(home, args) if args.action == "add" else _remove(home, args.name)
    except HostError as error:
        raise CliError(str(error), where=args.name or "", next=error.next) from error


# --- add --------------------------------------------------------------------------------------------------------------


def _add_host(home: Home, args: argparse.Namespace) -> int:
    from orchestrator import hosts
    from orchestrator.ssh_files import new_key

    if not args.address:
        raise CliError("host add needs how you log in", next=f"gpujob host add {args.name} 'ssh -p 12345 root@host'")
    if not hosts.NAME.fullmatch(args.name):
        raise CliError(f"{args.name!r} is no name of a host", next="use a-z, 0-9 and -, beginning with a letter")
    address = hosts.parse_address(args.address)
    block: dict[str, Any] = {"host": address.host, "port": address.port, "user": address.user}
    block |= _words(args)
    home.make()
    folder = hosts.folder(home, args.name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _pin(folder, args.name, address, args.yes)
    line = new_key(folder)
    _install(folder, args.name, address, line)
    block |= _probed(home, args.name, block)
    hosts.put(home, args.name, block)
    cards = f"{block.get('count')} x {block['gpu']}" if block.get("gpu") else "no GPU"
    say(f"{args.name} is added: {cards}, {block['cpus']} CPUs; a spec names it by `providers: [ssh]`")
    if args.release == "none":
        say(f"nothing is switched off at the end of a job: {args.name} is yours and still bills until you release it")
    return exits.OK


def _words(args: argparse.Namespace) -> dict[str, Any]:
    """What was typed, checked before anything is done."""
    from jobspecs.gpus import parse_gpu
    from jobspecs.problems import Refusal
    from jobspecs.units import parse_money

    found: dict[str, Any] = {"release": args.release}
    try:
        if args.price is not None:
            found["price"] = str(parse_money(args.price))
        if args.gpu is not None:
            ask = parse_gpu(args.gpu)
            classes = [gpu for choice in ask.choices for gpu in choice.classes()]
            if not ask.is_none and len(classes) != 1:
                names = ", ".join(gpu.name for gpu in classes[:6])
                raise Refusal(f"{args.gpu} is not one card", f"write one of {names}")
            found |= {} if ask.is_none else {"gpu": classes[0].name, "count": ask.choices[0].count}
    except Refusal as refusal:
        raise CliError(refusal.reason, where="host add", next=refusal.hint) from refusal
    return found


def _pin(folder: Path, name: str, address: Any, trusted: bool) -> None:
    """Ask the host for its keys, show them, keep them under the host's name."""
    argv = ["ssh-keyscan", "-T", str(SCAN_S), "-p", str(address.port), address.host]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=4 * SCAN_S, check=False)
    keys = [" ".join(line.split()[1:3]) for line in done.stdout.splitlines() if line and line[0] != "#"]
    if not keys:
        raise CliError(
            f"no SSH answers at {address.host} port {address.port}", where=name, why=done.stderr.strip()[-200:],
            next=f"ssh -p {address.port} {address.user}@{address.host}", code=exits.PROVIDER,
        )  # fmt: skip
    pinned = "".join(f"{name} {key}\n" for key in sorted(keys))
    known = folder / "known_hosts"
    if known.exists() and set(known.read_text().splitlines()) & set(pinned.splitlines()):
        return  # the same machine as before
    prints = subprocess.run(["ssh-keygen", "-lf", "-"], input=pinned, capture_output=True, text=True, check=False)
    say(f"{name} shows these host keys:\n{prints.stdout.rstrip()}")
    if not trusted:
        if not sys.stdin.isatty():
            raise CliError("nobody is here to say whether they are right", where=name, next="look, then add -y")
        if input("Are they right? [y/N] ").strip().lower() not in ("y", "yes"):
            raise CliError("nothing was added", where=name)
    from orchestrator.ssh_files import write_private

    write_private(known, pinned.encode())


def _install(folder: Path, name: str, address: Any, line: str) -> None:
    """Put our key there: by our own key already, by the user's own SSH, else by a password that is asked for once."""
    if _ssh(folder, name, address, "true", own=True) == "":
        return
    command = INSTALL.format(line=line)
    trouble = _ssh(folder, name, address, command, own=False)
    if trouble and "Permission denied" in trouble:
        if not sys.stdin.isatty():
            raise CliError(
                "your own SSH keys do not open it, and nobody is here to type a password", where=name,
                next=f"put this line into ~/.ssh/authorized_keys there, then again: {line}", code=exits.PROVIDER,
            )  # fmt: skip
        import getpass

        by_password(folder, address, getpass.getpass(f"password of {address.user}@{address.host}: "), command)
    elif trouble:
        raise CliError("the key could not be installed", where=name, why=trouble, code=exits.PROVIDER)
    trouble = _ssh(folder, name, address, "true", own=True)
    if trouble:
        raise CliError("the key was installed and does not open it", where=name, why=trouble, code=exits.PROVIDER)


def _ssh(folder: Path, name: str, address: Any, command: str, *, own: bool) -> str:
    """Run a command there with our key or with the user's own; empty when it worked, else what was said."""
    argv = [
        "ssh", "-T", "-p", str(address.port), "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SCAN_S}",
        "-o", "StrictHostKeyChecking=yes", "-o", f'UserKnownHostsFile="{folder / "known_hosts"}"',
        "-o", f"HostKeyAlias={name}",
    ]  # fmt: skip
    if own:
        argv += ["-F", "none", "-i", str(folder / "id_ed25519"), "-o", "IdentitiesOnly=yes"]
    elif address.identity:
        argv += ["-i", address.identity]
    argv += [f"{address.user}@{address.host}", command]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip()[-300:] or f"exit code {done.returncode}")


def by_password(folder: Path, address: Any, password: str, command: str) -> None:
    """Run a command there with a password, under the pinned host key; it goes nowhere else. Raises CliError."""
    import paramiko

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    shown = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
    for row in (folder / "known_hosts").read_text().splitlines():
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{shown} {row.partition(' ')[2]}")
        if entry is not None and entry.key is not None:
            client.get_host_keys().add(shown, entry.key.get_name(), entry.key)
    try:
        client.connect(
            address.host, address.port, address.user, password=password, look_for_keys=False, allow_agent=False,
            timeout=SCAN_S,
        )  # fmt: skip
        _, out, err = client.exec_command(command, timeout=60)
        if out.channel.recv_exit_status() != 0:
            raise CliError("the key could not be installed", why=err.read().decode(errors="replace").strip()[-200:])
    except (paramiko.SSHException, OSError) as error:
        raise CliError("the password did not open it", why=str(error), code=exits.PROVIDER) from error
    finally:
        client.close()


def _probed(home: Home, name: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine has; cards that were typed are believed over those that are seen."""
    from jobspecs.gpus import identify
    from providers.errors import ProviderError

    try:
        seen = _provider(home, {name: block}).probe(name)
    except ProviderError as error:
        raise CliError(f"{name} cannot be asked what it has", why=str(error), code=exits.PROVIDER) from error
    if seen.get("lacks"):
        lacks = " ".join(seen["lacks"])
        raise CliError(
            f"{name} lacks {lacks}", where="host add", next=f"install it there, for example: apt-get install {lacks}",
            code=exits.PROVIDER,
        )  # fmt: skip
    found: dict[str, Any] = {part: int(seen[part]) for part in ("cpus", "memory", "disk")}
    if seen.get("docker"):
        found["docker"] = True
    if "gpu" not in block and seen.get("gpus"):
        cards = {identify(str(card), float(memory) / 1024) for card, memory in seen["gpus"]}
        card = cards.pop() if len(cards) == 1 else None
        if card is not None:
            found |= {"gpu": card.name, "count": len(seen["gpus"])}
    return found


def _provider(home: Home, blocks: Mapping[str, Any]) -> Any:
    from orchestrator.credentials import provider_config
    from providers.registry import get_provider

    return get_provider("ssh", provider_config(home, "host", {"hosts": blocks}))


# --- ls, rm -----------------------------------------------------------------------------------------------------------


def _list(home: Home, output: str) -> int:
    from orchestrator.config import load_config

    found = load_config(home).hosts
    if output == "json":
        print_json([_document(name, block) for name, block in sorted(found.items())])
        return exits.OK
    if not found:
        put("no hosts; gpujob host add NAME 'ssh -p 12345 root@host'")
        return exits.OK
    rows = [
        (name, f"{block.get('user')}@{block.get('host')}:{block.get('port')}",
         f"{block.get('count')} x {block['gpu']}" if block.get("gpu") else "none",
         f"{block['price']}/h" if block.get("price") else "-", str(block.get("release") or "none"))
        for name, block in sorted(found.items())
    ]  # fmt: skip
    put(table(("NAME", "ADDRESS", "GPU", "PRICE", "AT THE END"), rows, shrink=("AT THE END",), state=""))
    return exits.OK


def _document(name: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the config, whose values are text, as JSON has them everywhere."""
    from decimal import Decimal

    amount, _, currency = str(block.get("price") or "").partition(" ")
    return {
        "name": name,
        "host": block.get("host"),
        "port": int(block.get("port") or 22),
        "user": block.get("user"),
        "gpu": block.get("gpu"),
        **{part: int(block.get(part) or 0) for part in ("count", "cpus", "memory", "disk")},
        "price": money_json(Decimal(amount), currency or "USD") if amount else None,
        "release": block.get("release") or "none",
    }


def _remove(home: Home, name: str) -> int:
    """Refused while a rental holds the host; its key there goes first, as far as the host answers."""
    from orchestrator import hosts
    from orchestrator.config import load_config
    from orchestrator.ssh_files import new_key
    from providers.errors import ProviderError

    block = load_config(home).hosts.get(name)
    if block is None:
        raise CliError(f"there is no host {name}", next="gpujob host ls")
    try:
        held = [one for one in _provider(home, {name: block}).list_all(name).instances if one.status == "held"]
        trouble = ""
    except ProviderError as error:
        held, trouble = [], str(error)
    if held:
        raise CliError(
            f"{name} is in use by rental {held[0].tag.rental}",
            where="host rm",
            next="gpujob ps, then gpujob cancel JOB",
        )
    address = hosts.Address(str(block.get("host")), int(block.get("port") or 22), str(block.get("user") or "root"))
    folder = hosts.folder(home, name)
    if not trouble:
        trouble = _ssh(folder, name, address, REMOVE.format(line=new_key(folder)), own=True)
    hosts.put(home, name, None)
    hosts.forget(home, name)
    say(f"{name} is removed here" + (f"; our key stayed there: {trouble}" if trouble else ", and our key there"))
    return exits.OK


COMMANDS = {"host": Command(_add, run)}
