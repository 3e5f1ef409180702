"""The report's figures as plotly specifications; the only importers of plotly, which takes a second to load."""
