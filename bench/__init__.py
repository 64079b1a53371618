"""One file per question. Figures are of one run on one machine: compare ratios, not numbers."""
