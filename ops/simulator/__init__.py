"""A provider to test against: speaks OpenRouter's and the engines' wire forms, fails on demand and keeps its own ledger."""
