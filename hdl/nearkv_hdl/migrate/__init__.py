"""The migration interface: moves keys and values between tiers, and changes layout and format on the way."""
