// What every file of the suite shares. The e2b client under test is the one
// installed in the folder the suite is run from, so one suite serves all versions.
import { createRequire } from 'node:module'
import http from 'node:http'
import { after } from 'node:test'
import path from 'node:path'

const require = createRequire(path.join(process.cwd(), 'package.json'))
export const sdk = require('e2b')
export const { Sandbox } = sdk

const base = new URL(process.env.E2B_API_URL)

// newSandbox creates one that is killed when the file's tests are over.
export async function newSandbox(template, opts) {
  const sandbox =
    typeof template === 'string' ? await Sandbox.create(template, opts) : await Sandbox.create(template)
  return owned(sandbox)
}

// owned has a sandbox that came about in another way killed at the end as well.
export function owned(sandbox) {
  created.add(sandbox.sandboxId)
  return sandbox
}

const created = new Set()
after(async () => {
  await Promise.all([...created].map((id) => Sandbox.kill(id)))
})

// until polls cond until it gives something truthy, and fails when that takes
// far longer than any healthy machine needs.
export async function until(what, cond, { tries = 600, every = 100 } = {}) {
  for (let i = 0; i < tries; i++) {
    const got = await cond()
    if (got) return got
    await sleep(every)
  }
  throw new Error(`never came true: ${what}`)
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// send asks a port of a sandbox through the gateway, as a browser would: by
// the host name that getHost gives.
export function send(host, { path = '/', method = 'GET', headers = {}, body } = {}) {
  return new Promise((resolve, reject) => {
    const request = http.request(
      { host: base.hostname, port: base.port, path, method, headers: { ...headers, host }, agent: false },
      (response) => {
        const chunks = []
        response.on('data', (chunk) => chunks.push(chunk))
        response.on('end', () => {
          const bytes = Buffer.concat(chunks)
          resolve({
            status: response.statusCode,
            headers: response.headers,
            bytes,
            text: bytes.toString(),
            json: () => JSON.parse(bytes.toString()),
          })
        })
        response.on('error', reject)
      },
    )
    request.on('error', reject)
    request.end(body)
  })
}

// counter is a server that keeps a random word and a count in its memory only:
// whoever answers with the same word and a higher count is the same process.
const counterSource = `
import http.server, os, secrets, threading, time
word = secrets.token_hex(8)
count = 0
def tick():
    global count
    while True:
        count += 1
        time.sleep(0.02)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("%s %d %d" % (word, os.getpid(), count)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
threading.Thread(target=tick, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
`

export async function startCounter(sandbox) {
  await sandbox.files.write('/home/user/counter.py', counterSource)
  await sandbox.commands.run('python3 /home/user/counter.py', { background: true, timeoutMs: 0 })
  return until('the counter answers', () => askCounter(sandbox).catch(() => null))
}

export async function askCounter(sandbox) {
  const answer = await send(sandbox.getHost(8000))
  if (answer.status !== 200) throw new Error(`counter: ${answer.status} ${answer.text}`)
  const [word, pid, count] = answer.text.split(' ')
  return { word, pid: Number(pid), count: Number(count) }
}
