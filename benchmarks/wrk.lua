-- One-byte POSTs; the summary as one line of JSON, exact where wrk's own text is rounded. All times in microseconds.
wrk.method = "POST"
wrk.body = "x"
wrk.headers["Content-Type"] = "text/plain"

function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      'JSON {"requests": %d, "seconds": %.6f, "non_2xx": %d, "errors": %d, "mean_us": %.1f, "p50_us": %d, "p90_us": %d, "p99_us": %d, "max_us": %d}\n',
      summary.requests, summary.duration / 1e6, e.status, e.connect + e.read + e.write + e.timeout,
      latency.mean, latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
