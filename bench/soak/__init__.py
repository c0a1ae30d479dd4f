"""Whether anything grows, and whether everything that was taken is given back, while something fails every second."""
