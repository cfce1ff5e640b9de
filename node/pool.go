package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// pool keeps restored sandboxes without identity ready for creates. A pooled one
// is a sandbox like any other to the journal, in a state that no caller sees, so
// that a crash leaks none: reconcile removes them and the pool fills anew.
type pool struct {
	n *Node

	mu     sync.Mutex
	ready  map[string][]*entry // template id → pooled, locks not held
	active int                 // creates in flight; filling waits for them
	last   time.Time           // when the latest one ended
	wake   chan struct{}
}

var errPoolEmpty = errors.New("pool is empty")

func (p *pool) init(n *Node) {
	p.n, p.ready, p.wake = n, map[string][]*entry{}, make(chan struct{}, 1)
	if len(n.opts.Pool) > 0 {
		n.goes(p.run)
		p.kick()
	}
}

func (p *pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pause and resume bracket a create, so that filling the pool does not compete
// with the very create that emptied it.
func (p *pool) pause() {
	p.mu.Lock()
	p.active++
	p.mu.Unlock()
}

func (p *pool) resume() {
	p.mu.Lock()
	p.active--
	p.last = time.Now()
	p.mu.Unlock()
	p.kick()
}

// quiet is how long no create may have been in flight before one more is pooled:
// whoever creates runs a command next, and a restore beside it would slow that.
const quiet = 300 * time.Millisecond

func (p *pool) run() {
	for {
		select {
		case <-p.n.ctx.Done():
			return
		case <-p.wake:
		}
		for p.n.ctx.Err() == nil {
			select {
			case <-p.n.ctx.Done():
				return
			case <-time.After(p.rest()):
			}
			t := p.short()
			if t == nil {
				break
			}
			if err := p.fill(t); err != nil {
				p.n.log.Warn("pool", "template", t.ID, "error", err)
				break // until the next create, or template, kicks
			}
		}
	}
}

// rest is how long filling still has to wait for the latest create's sake.
func (p *pool) rest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return quiet - time.Since(p.last)
}

// short gives a template whose pool is not full, nil when all are or creates are
// in flight.
func (p *pool) short() *template {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active > 0 {
		return nil
	}
	p.n.mu.RLock()
	defer p.n.mu.RUnlock()
	for name, want := range p.n.opts.Pool {
		if t, err := p.n.lookup(name); err == nil && t.Image != "" && len(p.ready[t.ID]) < want {
			return t
		}
	}
	return nil
}

// fill adds one.
func (p *pool) fill(t *template) error {
	n := p.n
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.ctx), opTimeout)
	defer cancel()
	r := n.newRecord(t, sandbox.CreateOptions{
		Space: sandbox.DefaultSpace, Template: t.ID, Timeout: sandbox.DefaultTimeout,
		// What most creates ask for, so that most claims have no policy to change. The
		// guest alone runs until then.
		Network: sandbox.Network{AllowInternet: true, AllowPublicTraffic: true},
	})
	n.own(r, newID("i"))
	r.State, r.Pool = pooled, t.ID
	e, err := n.establish(ctx, t, r)
	if err != nil {
		return err
	}
	r = r.clone()
	s, err := n.bringUp(ctx, r)
	if err == nil {
		r.Image = ""
		// Journalled before anything else can fail, so that erase finds the slot.
		err = n.commit(ctx, e, r)
	}
	if err == nil && s.depth != sandbox.DepthMemory {
		err = errors.New(s.reason)
	}
	if err != nil {
		err = errors.Join(err, n.erase(ctx, e))
		e.release()
		return err
	}
	e.release()
	p.give(t.ID, e)
	n.mu.RLock()
	gone := n.templates[t.ID] != t
	n.mu.RUnlock()
	if gone { // and whoever removed it may have looked into the pool before
		p.forget(t.ID)
	}
	return nil
}

// take gives a pooled sandbox of the template with its lock held, nil when there
// is none.
func (p *pool) take(id string) *entry {
	for {
		p.mu.Lock()
		list := p.ready[id]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		e := list[0]
		p.ready[id] = list[1:]
		p.mu.Unlock()
		<-e.lock
		if e.rec.Load().State == pooled { // its instance may have died meanwhile
			return e
		}
		e.release()
	}
}

// forget discards what is pooled of a template that went away.
func (p *pool) forget(id string) {
	for e := p.take(id); e != nil; e = p.take(id) {
		if err := p.n.erase(context.WithoutCancel(p.n.ctx), e); err != nil {
			p.n.log.Warn("pool", "sandbox", e.id, "error", err)
		}
		e.release()
	}
}

// count tells how many are ready.
func (p *pool) count(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready[id])
}

// claim makes a pooled sandbox the one that want describes: policy and limits
// first, identity last, one journal row. errPoolEmpty when there is none, or when
// the one taken turned out broken.
func (n *Node) claim(ctx context.Context, t *template, want *record) (*sandbox.Sandbox, error) {
	e := n.pool.take(t.ID)
	if e == nil {
		return nil, errPoolEmpty
	}
	defer e.release()
	have := e.rec.Load()
	r := want.clone()
	n.own(r, have.ID)
	r.Layers, r.Upper, r.Slot, r.Generation = have.Layers, have.Upper, have.Slot, have.Generation
	r.State = sandbox.Running
	if err := n.admit(e, r, nil); err != nil {
		n.pool.give(t.ID, e)
		return nil, err
	}
	start := time.Now()
	err := n.dress(ctx, have, r)
	n.log.Debug("claim", "sandbox", r.ID, "dress", time.Since(start))
	if err == nil {
		n.step("claim.identified")
		err = n.commit(ctx, e, r)
	}
	n.unreserve(r)
	if err != nil {
		n.log.Warn("pooled sandbox could not be claimed", "sandbox", e.id, "error", err)
		return nil, errors.Join(errPoolEmpty, n.erase(ctx, e))
	}
	n.arm(e)
	n.event(ctx, r, "created", "created from "+r.Template+" (pool)", map[string]string{"template": r.TemplateID})
	return r.view(), nil
}

// dress gives a pooled instance what the request asked for.
func (n *Node) dress(ctx context.Context, have, r *record) error {
	if !samePolicy(have.Network, r.Network) {
		if err := n.network.SetPolicy(ctx, r.Slot, policy(r.Network)); err != nil {
			return err
		}
	}
	if have.Resources != r.Resources {
		if err := n.engine.Update(ctx, r.instance(), resources(r.Resources, r.Resources.PIDs)); err != nil {
			return err
		}
	}
	return n.identify(ctx, r)
}

// lost takes out one whose instance died, so that another is made.
func (p *pool) lost(e *entry) {
	p.mu.Lock()
	for id, list := range p.ready {
		p.ready[id] = slices.DeleteFunc(slices.Clone(list), func(x *entry) bool { return x == e })
	}
	p.mu.Unlock()
	p.kick()
}

func (p *pool) give(id string, e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[id] = append(p.ready[id], e)
}
