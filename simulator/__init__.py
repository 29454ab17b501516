"""Simulated GPUs, their driver and its trace; fakes of the node. No node of a cluster runs any of
it.
"""
