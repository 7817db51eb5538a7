"""Where code and data come from: a repository at a commit, the web, the Hugging Face Hub, object stores, rclone.

Rules: asked at apply, on this computer, with the user's own credentials; what was found is frozen (a commit, a list of
files with their sizes and hashes), so that every attempt gets the same. One file a kind.
"""

from __future__ import annotations
