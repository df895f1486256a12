"""Links to tools around the runtime."""
