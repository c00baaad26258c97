package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// openChecked opens a bbolt file, locks it like bbolt, and checks it. bbolt's own lock is then the one already held. A
// new, empty file is valid.
func openChecked(path string, flag int, mode fs.FileMode, patience time.Duration) (*os.File, error) {
	file, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	err = lock(file, patience)
	if err == nil {
		err = protect(func() error { return checkFile(file) })
	}
	if err != nil {
		closeLocked(file)
		return nil, err
	}
	return file, nil
}

// lock waits up to patience for another process to release the lock.
func lock(file *os.File, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(deadline) {
			return ErrLocked
		}
	}
}

// closeLocked unlocks a file and closes it. Closing alone would keep the lock while a process that this one is starting
// still has the file open.
func closeLocked(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) // closing it unlocks it as well, later
	_ = file.Close()                                   // nothing was written through it
}

// The format of a bbolt file, version 2, in the machine's byte order. It consists of pages, each with a header of {id
// uint64, flags uint16, count uint16, overflow uint32}. overflow is the number of additional pages that belong to it.
// Pages 0 and 1 are meta pages, written alternately. The newer valid one has the root of a tree of branch and leaf
// pages. Their elements follow the header. Each element has the position of its key and value, relative to itself.
const (
	headerSize  = 16
	elementSize = 16
	metaSize    = 64
	bucketSize  = 16 // {root, sequence uint64} in the value of a leaf element; an inline page follows if root is 0

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement = 0x01

	magic         = 0xED0CDAED
	formatVersion = 2
	noFreelist    = ^uint64(0)
)

var native = binary.NativeEndian

// checkFile returns an error if bbolt cannot use the file, because bbolt would end the process without an error. It
// may panic or fault; see protect.
func checkFile(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return nil
	}
	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	err = checkData(data)
	return errors.Join(err, syscall.Munmap(data))
}

func checkData(data []byte) error {
	m, ok := newestMeta(data)
	if !ok {
		return fmt.Errorf("%w: no valid meta page", errUnsound)
	}
	if room := uint64(len(data)) / m.pageSize; m.pages > room {
		return fmt.Errorf("%w: it has room for %d of its %d pages", errUnsound, room, m.pages)
	}
	c := &checker{data: data, pageSize: m.pageSize, seen: make([]bool, m.pages)}
	c.seen[0], c.seen[1] = true, true
	if err := c.tree(m.root, nil, nil); err != nil {
		return fmt.Errorf("%w: %w", errUnsound, err)
	}
	if m.freelist != noFreelist {
		if err := c.freelist(m.freelist); err != nil {
			return fmt.Errorf("%w: %w", errUnsound, err)
		}
	}
	return nil
}

type meta struct {
	pageSize, root, freelist, pages, transaction uint64
}

// newestMeta returns the meta page of the last complete transaction.
func newestMeta(data []byte) (newest meta, found bool) {
	for _, at := range metaOffsets(data) {
		m, ok := readMeta(data, at)
		if ok && (!found || m.transaction > newest.transaction) {
			newest, found = m, true
		}
	}
	return newest, found
}

// metaOffsets returns the possible offsets of meta pages: 0, and one page of any size.
func metaOffsets(data []byte) []int {
	offsets := []int{0}
	if m, ok := readMeta(data, 0); ok {
		return append(offsets, int(m.pageSize))
	}
	for size := 1 << 10; size <= 1<<24; size <<= 1 {
		offsets = append(offsets, size)
	}
	return offsets
}

func readMeta(data []byte, at int) (meta, bool) {
	b, ok := span(data, at+headerSize, metaSize)
	if !ok || native.Uint32(b) != magic || native.Uint32(b[4:]) != formatVersion {
		return meta{}, false
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:56])
	m := meta{
		pageSize:    uint64(native.Uint32(b[8:])),
		root:        native.Uint64(b[16:]),
		freelist:    native.Uint64(b[32:]),
		pages:       native.Uint64(b[40:]),
		transaction: native.Uint64(b[48:]),
	}
	return m, native.Uint64(b[56:]) == sum.Sum64() && m.pageSize > 0 && m.pages > 2
}

// checker walks the tree of one meta page.
type checker struct {
	data     []byte
	pageSize uint64
	seen     []bool // pages reached, of all that are in use or free
}

// page is a page's header and content.
type page struct {
	name  string
	flags uint16
	count int
	data  []byte // including the header
}

// page returns a page that has not been reached before.
func (c *checker) page(id uint64) (page, error) {
	if id >= uint64(len(c.seen)) {
		return page{}, fmt.Errorf("page %d is beyond the last, %d", id, len(c.seen)-1)
	}
	header := c.data[id*c.pageSize:]
	overflow := uint64(native.Uint32(header[12:]))
	if own := native.Uint64(header); own != id {
		return page{}, fmt.Errorf("page %d says it is page %d", id, own)
	}
	if id+overflow >= uint64(len(c.seen)) {
		return page{}, fmt.Errorf("page %d ends beyond the last, %d", id, len(c.seen)-1)
	}
	for i := id; i <= id+overflow; i++ {
		if c.seen[i] {
			return page{}, fmt.Errorf("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	return newPage(fmt.Sprintf("page %d", id), header[:(overflow+1)*c.pageSize]), nil
}

func newPage(name string, data []byte) page {
	return page{name: name, flags: native.Uint16(data[8:]), count: int(native.Uint16(data[10:])), data: data}
}

// tree checks the pages below a page. Their keys must be at least low and below high; nil is no bound.
func (c *checker) tree(id uint64, low, high []byte) error {
	p, err := c.page(id)
	if err != nil {
		return err
	}
	return c.elements(p, low, high)
}

func (c *checker) elements(p page, low, high []byte) error {
	if p.flags != branchPage && p.flags != leafPage || p.flags == branchPage && p.count == 0 {
		return fmt.Errorf("%s is neither branch nor leaf (flags %#x, %d elements)", p.name, p.flags, p.count)
	}
	elements := make([]element, p.count)
	for i := range elements {
		e, err := p.element(i)
		if err != nil {
			return err
		}
		if len(e.key) == 0 || bytes.Compare(e.key, low) < 0 || i > 0 && bytes.Equal(e.key, low) ||
			high != nil && bytes.Compare(e.key, high) >= 0 {
			return fmt.Errorf("%s: element %d is out of order", p.name, i)
		}
		elements[i], low = e, e.key
	}
	for i, e := range elements {
		var err error
		switch {
		case p.flags == branchPage:
			below := high
			if i+1 < len(elements) {
				below = elements[i+1].key
			}
			err = c.tree(e.child, e.key, below)
		case e.bucket:
			err = c.bucket(p, e.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) bucket(p page, value []byte) error {
	if len(value) < bucketSize {
		return fmt.Errorf("%s: a bucket of %d bytes", p.name, len(value))
	}
	if root := native.Uint64(value); root != 0 {
		return c.tree(root, nil, nil)
	}
	if len(value) < bucketSize+headerSize {
		return fmt.Errorf("%s: an inline bucket of %d bytes", p.name, len(value))
	}
	return c.elements(newPage(p.name+", inline bucket", value[bucketSize:]), nil, nil)
}

// element is a key with a child page (branch), or a value (leaf).
type element struct {
	key, value []byte
	child      uint64
	bucket     bool
}

func (p page) element(i int) (e element, err error) {
	at := headerSize + i*elementSize
	b, ok := span(p.data, at, elementSize)
	if !ok {
		return e, fmt.Errorf("%s: no room for element %d", p.name, i)
	}
	var position, keySize, valueSize int
	if p.flags == branchPage {
		position, keySize = int(native.Uint32(b)), int(native.Uint32(b[4:]))
		e.child = native.Uint64(b[8:])
	} else {
		e.bucket = native.Uint32(b)&bucketElement != 0
		position, keySize = int(native.Uint32(b[4:])), int(native.Uint32(b[8:]))
		valueSize = int(native.Uint32(b[12:]))
	}
	content, ok := span(p.data, at+position, keySize+valueSize)
	if !ok {
		return e, fmt.Errorf("%s: element %d lies outside", p.name, i)
	}
	e.key, e.value = content[:keySize], content[keySize:]
	return e, nil
}

// freelist checks a stored free list, such as that of a new file.
func (c *checker) freelist(id uint64) error {
	p, err := c.page(id)
	if err != nil {
		return err
	}
	if p.flags != freelistPage {
		return fmt.Errorf("%s is no free list (flags %#x)", p.name, p.flags)
	}
	at, count := headerSize, p.count
	if count == 0xFFFF { // a larger count is in the first element
		at, count = at+8, int(native.Uint64(p.data[at:]))
	}
	ids, ok := span(p.data, at, count*8)
	if !ok {
		return fmt.Errorf("%s: %d free pages don't fit", p.name, count)
	}
	for ; len(ids) > 0; ids = ids[8:] {
		if free := native.Uint64(ids); free >= uint64(len(c.seen)) || c.seen[free] {
			return fmt.Errorf("page %d can't be free", free)
		}
	}
	return nil
}

// span returns length bytes of data starting at the offset at, if there are that many.
func span(data []byte, at, length int) ([]byte, bool) {
	if at < 0 || length < 0 || at > len(data) || length > len(data)-at {
		return nil, false
	}
	return data[at : at+length], true
}
