"""The set for a machine with a card (`make gpu`): does it work, cap, share, preempt, cost nothing,
survive faults.
"""
