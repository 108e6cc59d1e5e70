"""Several machines on one: a network namespace for each host, joined by a bridge on which any host can be cut off.

A cut cable is silent: nothing is refused and nothing is reset, packets are gone. A real network has routers between its
hosts; on one bridge a host that vanished would soon be called unreachable by ARP, which is kinder than what we want to
know. So every host knows every other's hardware address for good, and packets to a cut host go nowhere.

Linux only, root only, iproute2's `ip`. Everything made carries one random name and is removed again.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence


def why_not() -> str | None:
    """Why this machine cannot have such a network; None if it can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2) on this machine"
    name = f"try-{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"this machine makes no network namespaces: {tried.stderr.strip()}"
    bridge = f"t{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, text=True)
    subprocess.run(["ip", "link", "del", bridge], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"this machine makes no bridges: {tried.stderr.strip()}" if tried.returncode else None


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Network:
    """`with Network(("web1", "db")) as network:`; the test itself is at `network.outside`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.tag = secrets.token_hex(3)
        number = secrets.randbelow(200) + 20
        self.prefix = f"10.{number}.{secrets.randbelow(250)}"
        self.outside = f"{self.prefix}.1"
        self.hosts = list(hosts)
        self._bridge = f"b{self.tag}"
        self._made: list[str] = []

    def address(self, host: str) -> str:
        return f"{self.prefix}.{10 + self.hosts.index(host)}"

    def _hardware(self, address: str) -> str:
        return f"02:00:00:{int(self.tag[:2], 16):02x}:00:{int(address.rpartition('.')[2]):02x}"

    def namespace(self, host: str) -> str:
        return f"{self.tag}-{host}"

    def _cable(self, host: str) -> str:
        return f"v{self.tag}{self.hosts.index(host)}"

    def inside(self, host: str) -> list[str]:
        """What to put before a command so that it runs on that host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def cut(self, host: str) -> None:
        _ip("link", "set", self._cable(host), "down")

    def mend(self, host: str) -> None:
        _ip("link", "set", self._cable(host), "up")

    def __enter__(self) -> "Network":
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        bridge_hardware = self._hardware(self.outside)
        _ip("link", "add", self._bridge, "address", bridge_hardware, "type", "bridge")
        _ip("addr", "add", f"{self.outside}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host in self.hosts:
            name, cable, address = self.namespace(host), self._cable(host), self.address(host)
            _ip("netns", "add", name)
            self._made.append(name)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", cable, "master", self._bridge)
            _ip("link", "set", cable, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "address", self._hardware(address))
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        addresses = [self.outside, *map(self.address, self.hosts)]
        for host in self.hosts:
            for other in addresses:
                if other != self.address(host):
                    _ip("-n", self.namespace(host), "neigh", "replace", other, "lladdr", self._hardware(other),
                        "dev", "eth0", "nud", "permanent")  # fmt: skip
            address = self.address(host)
            _ip("neigh", "replace", address, "lladdr", self._hardware(address), "dev", self._bridge, "nud", "permanent")

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)
        for host in self.hosts:
            subprocess.run(["ip", "link", "del", self._cable(host)], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)
