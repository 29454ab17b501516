"""What runs on the node: the daemon, and the bindings to the arbiter, NVML and the simulated
driver.
"""
