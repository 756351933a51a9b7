"""From fault codes to the health of each chip: state and rules without input, output or a clock.

driver's events and readings ──► active_faults ──► bus_errors ──► upgrades ──► chip_health ──► health_book ──► snapshot
FaultTransition                 (duration,                                   Chip
frequency)                                   FaultRecord
"""
