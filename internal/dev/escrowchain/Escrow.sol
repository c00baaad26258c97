// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

/// Escrow holds an amount that its payer deposits at its creation. It pays the payee when enough of payer, payee and arbiter have
/// approved, or when the payee claims it after the release time. The arbiter may refund the payer, and so may the payer itself 30 days
/// after the release time. Released and refunded are final.
contract Escrow {
    enum Status {
        Active,
        Released,
        Refunded
    }

    event EscrowCreated(
        address indexed payer,
        address indexed payee,
        address indexed arbiter,
        uint256 amount,
        uint256 releaseTime,
        uint8 approvalsRequired
    );
    event Approved(address indexed approver);
    event EscrowReleased(address indexed payee, uint256 amount, uint256 timestamp);
    event EscrowRefunded(address indexed payer, uint256 amount, uint256 timestamp);

    /// The caller may not do this.
    error NotAllowed(address caller);
    /// The escrow is released or refunded.
    error Settled();
    /// The caller has approved already.
    error ApprovedAlready(address approver);
    /// The receiver refused the amount.
    error PaymentFailed();

    uint256 private constant REFUND_AFTER = 30 days;

    address public immutable payer;
    address public immutable payee;
    address public immutable arbiter;
    uint256 public immutable amount;
    uint256 public immutable releaseTime;
    uint8 public immutable approvalsRequired;

    Status public status;
    uint8 public approvals;
    mapping(address => bool) public hasApproved;

    /// Emits EscrowCreated, which precedes the factory's EscrowDeployed in the transaction.
    constructor(address payer_, address payee_, address arbiter_, uint256 releaseDelay, uint8 approvalsRequired_) payable {
        payer = payer_;
        payee = payee_;
        arbiter = arbiter_;
        amount = msg.value;
        releaseTime = block.timestamp + releaseDelay;
        approvalsRequired = approvalsRequired_;
        emit EscrowCreated(payer_, payee_, arbiter_, msg.value, block.timestamp + releaseDelay, approvalsRequired_);
    }

    /// Records the caller's approval. The last one that is required releases the amount in the same transaction.
    function approve() external {
        if (status != Status.Active) revert Settled();
        if (msg.sender != payer && msg.sender != payee && msg.sender != arbiter) revert NotAllowed(msg.sender);
        if (hasApproved[msg.sender]) revert ApprovedAlready(msg.sender);
        hasApproved[msg.sender] = true;
        approvals++;
        emit Approved(msg.sender);
        if (approvals >= approvalsRequired) pay(Status.Released);
    }

    /// Releases the amount to the payee after the release time.
    function release() external {
        if (status != Status.Active) revert Settled();
        if (msg.sender != payee || block.timestamp < releaseTime) revert NotAllowed(msg.sender);
        pay(Status.Released);
    }

    /// Returns the amount to the payer.
    function refund() external {
        if (status != Status.Active) revert Settled();
        bool late = msg.sender == payer && block.timestamp >= releaseTime + REFUND_AFTER;
        if (msg.sender != arbiter && !late) revert NotAllowed(msg.sender);
        pay(Status.Refunded);
    }

    function pay(Status to) private {
        status = to;
        address receiver = to == Status.Released ? payee : payer;
        if (to == Status.Released) {
            emit EscrowReleased(receiver, amount, block.timestamp);
        } else {
            emit EscrowRefunded(receiver, amount, block.timestamp);
        }
        (bool paid,) = receiver.call{value: amount}("");
        if (!paid) revert PaymentFailed();
    }
}
