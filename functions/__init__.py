"""Then: functions of an environment, their immutable versions, their runs, and the runtime that executes them.

A run is a row before it is work: leases in the region's database decide who executes it, so none is lost and none is
eternal, whatever dies. The tenant's code runs in Deno behind walls (`functions.runtime`) and reaches rows only as
whoever invoked it (`functions.execution.host_api`). Contract sections 4.11 and 4.12; design section 8.
"""
