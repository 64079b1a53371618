"""The worker: pops jobs, runs tasks, extends leases, settles."""
