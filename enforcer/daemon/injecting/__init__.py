"""How the shim gets into tasks on this node: the copy that fits the driver, and the way of
injection.
"""
