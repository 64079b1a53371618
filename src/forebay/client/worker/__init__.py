"""The worker: pops jobs, runs tasks, keeps leases, settles."""
