"""The reconciler: a pure core (`reconcile`), one loop (`controller`), one database door (`store`), the machine side."""
