"""Parts of the campaigns that move streams: the load, the tool, planted bugs."""
