"""Machines of this host, each a process tree with its own sshd; `providers.local` is their only user.

`folder` is what lies on disk, `isolation` the three ways to fence a machine in, `launch` builds and starts
one, `pid1` is the program that is the machine, `lives` looks at it, kills and reboots it by means of `process`,
`prices` and `reclaim` imitate the market, `nvidia_smi` the GPU.
"""
