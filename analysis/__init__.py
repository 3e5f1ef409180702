"""Records of a run to numbers, figures and pages."""
