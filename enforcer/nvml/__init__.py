"""NVML behind a deadline: the cards, and what runs on them."""
