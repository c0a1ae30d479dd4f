"""The only builders of adapters: from checked settings to the parts that the processes work with."""
