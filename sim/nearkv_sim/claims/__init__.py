"""Published figures that the models of hardware and arithmetic can measure again."""
