"""Who rents machines: one file a provider, all behind the protocol in `providers.base`.

Imports nothing of `jobspecs` or `orchestrator`; the GPU table comes in by `ProviderConfig`.
"""
