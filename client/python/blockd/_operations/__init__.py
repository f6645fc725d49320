"""What each call asks and answers, for threads and event loops alike. Internal; see _calls.py."""
