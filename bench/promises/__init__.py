"""The promises of README, each judged by the trace of the simulator."""
