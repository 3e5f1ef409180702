"""``report.html``: one offline page, its style and its behaviour."""
