"""Everything around the deployed code: set-up, commands, local engines, packaging."""
