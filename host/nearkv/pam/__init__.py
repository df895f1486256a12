"""PAM (arXiv 2602.11521): keys and values over three PIM tiers, scheduled by importance."""
