import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { before, test } from 'node:test'
import { sdk, newSandbox, until, send } from './kit.mjs'

let sandbox
before(async () => {
  sandbox = await newSandbox({ timeoutMs: 600_000 })
})

test('text', async () => {
  const info = await sandbox.files.write('hello.txt', 'hello\nworld ü')
  assert.equal(info.path, '/home/user/hello.txt')
  assert.equal(info.name, 'hello.txt')
  assert.equal(await sandbox.files.read('hello.txt'), 'hello\nworld ü')
  assert.equal(await sandbox.files.read('/home/user/hello.txt'), 'hello\nworld ü')
  await sandbox.files.write('hello.txt', 'short')
  assert.equal(await sandbox.files.read('hello.txt'), 'short')
  await sandbox.files.write('empty.txt', '')
  assert.equal(await sandbox.files.read('empty.txt'), '')
})

for (const useOctetStream of [false, true]) {
  const how = useOctetStream ? 'octet stream' : 'multipart'
  test(`bytes, blob and stream (${how})`, async () => {
    const bytes = randomBytes(300_000)
    const exact = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)
    const sources = { buffer: exact, blob: new Blob([bytes]), stream: new Blob([bytes]).stream() }
    for (const [name, data] of Object.entries(sources)) {
      const path = `/tmp/${how.replace(' ', '-')}/${name}.bin`
      await sandbox.files.write(path, data, { useOctetStream })
      assert.ok(bytes.equals(Buffer.from(await sandbox.files.read(path, { format: 'bytes' }))), name)
      const blob = await sandbox.files.read(path, { format: 'blob' })
      assert.ok(bytes.equals(Buffer.from(await blob.arrayBuffer())), `${name} as blob`)
      const chunks = []
      for await (const chunk of await sandbox.files.read(path, { format: 'stream' })) chunks.push(chunk)
      assert.ok(bytes.equals(Buffer.concat(chunks)), `${name} as stream`)
    }
  })
}

test('a compressed upload and download', async () => {
  const text = 'compress me '.repeat(10_000)
  await sandbox.files.write('/tmp/gzip.txt', text, { gzip: true, useOctetStream: true })
  assert.equal(await sandbox.files.read('/tmp/gzip.txt', { gzip: true }), text)
  assert.equal((await sandbox.commands.run('wc -c < /tmp/gzip.txt')).stdout.trim(), String(text.length))
})

test('a big file keeps its bytes', async () => {
  const bytes = randomBytes(48 << 20)
  await sandbox.files.write('/tmp/big.bin', new Blob([bytes]))
  const sum = createHash('sha256').update(bytes).digest('hex')
  const { stdout } = await sandbox.commands.run('sha256sum /tmp/big.bin')
  assert.equal(stdout.split(' ')[0], sum)
  const back = await sandbox.files.read('/tmp/big.bin', { format: 'bytes' })
  assert.equal(createHash('sha256').update(back).digest('hex'), sum)
})

test('many files in one request, folders made on the way', async () => {
  const entries = Array.from({ length: 20 }, (_, i) => ({ path: `many/deep/${i}/file ${i}.txt`, data: `content ${i}` }))
  const infos = await sandbox.files.write(entries)
  assert.equal(infos.length, 20)
  assert.equal(infos[7].path, '/home/user/many/deep/7/file 7.txt')
  assert.equal(await sandbox.files.read('many/deep/19/file 19.txt'), 'content 19')
  const { stdout } = await sandbox.commands.run('stat -c %U:%G many many/deep/3 "many/deep/3/file 3.txt" | sort -u')
  assert.equal(stdout, 'user:user\n')
})

test('list: names, types, depth', async () => {
  await sandbox.commands.run('mkdir -p tree/a/b && touch tree/one tree/a/two tree/a/b/three && ln -s /etc/hostname tree/link')
  const flat = await sandbox.files.list('tree')
  assert.deepEqual(names(flat), ['a', 'link', 'one'])
  const byName = Object.fromEntries(flat.map((e) => [e.name, e]))
  assert.equal(byName.a.type, 'dir')
  assert.equal(byName.one.type, 'file')
  assert.equal(byName.one.path, '/home/user/tree/one')
  assert.equal(byName.link.symlinkTarget, '/etc/hostname')
  const deep = await sandbox.files.list('tree', { depth: 2 })
  assert.deepEqual(names(deep), ['a', 'b', 'link', 'one', 'two'])
  await assert.rejects(sandbox.files.list('no-such-folder'), sdk.NotFoundError)
  await assert.rejects(sandbox.files.list('tree/one'), sdk.InvalidArgumentError)
})

test('info tells size, mode, owner and time', async () => {
  await sandbox.commands.run('printf 12345 > sized && chmod 640 sized')
  const info = await sandbox.files.getInfo('sized')
  assert.equal(info.name, 'sized')
  assert.equal(info.type, 'file')
  assert.equal(info.size, 5)
  assert.equal(info.mode & 0o777, 0o640)
  assert.equal(info.permissions, '-rw-r-----')
  assert.equal(info.owner, 'user')
  assert.equal(info.group, 'user')
  assert.ok(Math.abs(info.modifiedTime - Date.now()) < 600_000, String(info.modifiedTime))
  await assert.rejects(sandbox.files.getInfo('not-there'), sdk.NotFoundError)
})

test('exists, makeDir, rename, remove', async () => {
  assert.equal(await sandbox.files.exists('box'), false)
  assert.equal(await sandbox.files.makeDir('box/inner'), true)
  assert.equal(await sandbox.files.makeDir('box/inner'), false)
  assert.equal(await sandbox.files.exists('box/inner'), true)
  await sandbox.files.write('box/f', 'x')
  const moved = await sandbox.files.rename('box/f', 'elsewhere/g')
  assert.equal(moved.path, '/home/user/elsewhere/g')
  assert.equal(await sandbox.files.exists('box/f'), false)
  assert.equal(await sandbox.files.read('elsewhere/g'), 'x')
  await assert.rejects(sandbox.files.rename('box/f', 'box/h'), sdk.NotFoundError)
  await sandbox.files.remove('box')
  assert.equal(await sandbox.files.exists('box'), false)
  await sandbox.files.remove('box')
})

test('what is missing, and what is somebody else\'s, is refused', async () => {
  await assert.rejects(sandbox.files.read('no-such-file'), sdk.NotFoundError)
  await assert.rejects(sandbox.files.read('/etc/shadow'))
  await assert.rejects(sandbox.files.write('/etc/passwd', 'x'))
  assert.match(await sandbox.files.read('/etc/shadow', { user: 'root' }), /root:/)
  await assert.rejects(sandbox.files.read('hello.txt', { user: 'nobody-here' }), sdk.AuthenticationError)
})

test('files of root belong to root', async () => {
  await sandbox.files.write('/root/by-root.txt', 'r', { user: 'root' })
  assert.equal((await sandbox.commands.run('stat -c %U /root/by-root.txt', { user: 'root' })).stdout, 'root\n')
})

test('files of /proc read whole although they have no size', async () => {
  assert.match(await sandbox.files.read('/proc/self/status'), /^Name:/)
})

test('metadata of a file', async () => {
  await sandbox.files.write('tagged', 'x', { metadata: { origin: 'e2e' } })
  assert.deepEqual((await sandbox.files.getInfo('tagged')).metadata, { origin: 'e2e' })
})

test('signed URLs work without a token, and only as signed', async () => {
  await sandbox.files.write('signed.txt', 'signed content')
  const host = sandbox.getHost(49983)
  const get = async (url, opts) => {
    const { pathname, search } = new URL(url)
    return send(host, { path: pathname + search, ...opts })
  }
  const good = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: 600 })
  const answer = await get(good)
  assert.equal(answer.status, 200)
  assert.equal(answer.text, 'signed content')
  assert.equal((await get(good.replace('signed.txt', 'other.txt'))).status, 401)
  assert.equal((await get(good.replace(/signature=[^&]*/, 'signature=v1_forged'))).status, 401)
  assert.equal((await send(host, { path: '/files?path=signed.txt' })).status, 401)
  const expired = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: -10 })
  assert.equal((await get(expired)).status, 401)
})

for (const recursive of [false, true]) {
  test(`watch ${recursive ? 'recursively' : 'one folder'}`, async () => {
    const root = recursive ? 'watched-tree' : 'watched'
    await sandbox.files.makeDir(`${root}/sub`)
    const events = []
    const handle = await sandbox.files.watchDir(root, (event) => void events.push(event), { recursive })
    const seen = (name, ...types) => until(`${types} of ${name}`, () => events.some((e) => e.name === name && types.includes(e.type)))
    await sandbox.files.write(`${root}/a`, '1')
    await seen('a', 'create')
    await seen('a', 'write')
    await sandbox.files.rename(`${root}/a`, `${root}/b`)
    await seen('a', 'rename')
    await seen('b', 'create')
    await sandbox.files.remove(`${root}/b`)
    await seen('b', 'remove')
    await sandbox.files.write(`${root}/sub/inner`, '1')
    if (recursive) {
      await seen('sub/inner', 'create')
      await sandbox.files.write(`${root}/new/deep/inner`, '1')
      await seen('new/deep/inner', 'create', 'write')
    } else {
      await sandbox.files.write(`${root}/last`, '1')
      await seen('last', 'create')
      assert.ok(!events.some((e) => e.name.includes('inner')), 'nothing of the sub-folder')
    }
    await handle.stop()
  })
}

test('watching what is not a folder is refused', async () => {
  await sandbox.files.write('plain', 'x')
  await assert.rejects(sandbox.files.watchDir('plain', () => {}), sdk.InvalidArgumentError)
  await assert.rejects(sandbox.files.watchDir('never-made', () => {}), sdk.NotFoundError)
})

const names = (list) => list.map((e) => e.name).sort()
